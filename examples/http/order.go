// Places an order at most once, with nothing but the standard library: reserve, call the exchange, commit.
//
//	go run order.go KEY SYMBOL QUANTITY
//
// IDEMACTOR_URL and EXCHANGE_URL say where both are, IDEMACTOR_TOKEN who asks. Exit codes: 0 done, now or before, and
// what the exchange answered is printed; 10 somebody else is at it; 11 in doubt; 12 the key stands for another order;
// 30 nothing happened: the exchange refused it, or cannot be reached; 1 anything else.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

var (
	url      = env("IDEMACTOR_URL", "http://127.0.0.1:8787") + "/v1/" + env("IDEMACTOR_NAMESPACE", "trade")
	exchange = env("EXCHANGE_URL", "http://127.0.0.1:9100")
	pauses   = []time.Duration{0, 200, 500, 1000, 2000, 4000, 8000} // milliseconds
)

type members map[string]any

// answer has what this program needs to know of an answer.
type answer struct {
	Status       int    `json:"-"`
	Result       string `json:"result"`
	Code         string `json:"code"`
	Detail       string `json:"detail"`
	Token        int64  `json:"token"`
	OperationID  string `json:"operation_id"`
	Takeover     bool   `json:"takeover"`
	RetryAfterMs int64  `json:"retry_after_ms"`
	Outcome      *struct {
		Body    string `json:"body"`
		BodyB64 []byte `json:"body_b64"`
	} `json:"outcome"`
}

// ended is how the program ends where it does not end well.
type ended struct {
	exit int
	text string
}

func (e ended) Error() string { return e.text }

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func send(client *http.Client, method, url string, body []byte) (int, []byte, error) {
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if token := os.Getenv("IDEMACTOR_TOKEN"); token != "" && client == server {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

var (
	server     = &http.Client{Timeout: 5 * time.Second}
	downstream = &http.Client{Timeout: seconds(env("EXCHANGE_TIMEOUT_S", "5"))}
)

func seconds(text string) time.Duration {
	value, _ := strconv.ParseFloat(text, 64)
	return time.Duration(value * float64(time.Second))
}

// ask makes one call. Every one of these may be repeated, and is, until there is an answer.
func ask(call string, given members) (answer, error) {
	body, err := json.Marshal(given)
	if err != nil {
		return answer{}, err
	}
	var trouble error
	for _, pause := range pauses {
		time.Sleep(pause * time.Millisecond)
		status, text, err := send(server, "POST", url+"/"+call, body)
		if err != nil || status == 503 {
			trouble = fmt.Errorf("no answer to %s: %d %w", call, status, err)
			continue
		}
		found := answer{Status: status}
		return found, json.Unmarshal(text, &found)
	}
	return answer{}, trouble
}

// reserve returns the grant, or the outcome of the first time.
func reserve(key string, payload members) (answer, error) {
	// The name of this one acquisition: whatever is lost on the way, asking again gets the first answer.
	name := make([]byte, 16)
	if _, err := rand.Read(name); err != nil {
		return answer{}, err
	}
	asked := members{"key": key, "payload": payload, "request_id": hex.EncodeToString(name), "lease_ms": 30_000}
	tries, _ := strconv.Atoi(env("TRIES", "5"))
	for ; ; tries-- {
		found, err := ask("reserve", asked)
		if err != nil || found.Status == 200 || found.Status == 201 {
			return found, err
		}
		switch found.Code {
		case "IDEMPOTENCY_IN_FLIGHT":
			if tries <= 1 {
				return found, ended{10, "in flight"}
			}
			time.Sleep(time.Second)
		case "IDEMPOTENCY_IN_DOUBT":
			return found, ended{11, "in doubt: " + found.OperationID}
		case "IDEMPOTENCY_MISMATCH":
			return found, ended{12, "the key stands for another order"}
		default:
			return found, fmt.Errorf("%d %s: %s", found.Status, found.Code, found.Detail)
		}
	}
}

var (
	errRefused = errors.New("the exchange refused it")        // It surely did not happen.
	errNobody  = errors.New("the exchange cannot be reached") // Nor did it then.
	errUnclear = errors.New("the exchange did not say")
)

// find says whether an earlier attempt placed the order: the exchange knows it by the operation id, the same for
// every attempt. It returns nil where the exchange knows of none.
func find(operationID string) ([]byte, error) {
	status, text, err := send(downstream, "GET", exchange+"/orders/"+operationID, nil)
	switch {
	case err == nil && status == 200:
		return text, nil
	case err == nil && status == 404:
		return nil, nil
	default:
		return nil, errUnclear
	}
}

func place(order members, operationID string) ([]byte, error) {
	sent := members{"client_order_id": operationID}
	for name, value := range order {
		sent[name] = value
	}
	body, err := json.Marshal(sent)
	if err != nil {
		return nil, errRefused
	}
	status, text, err := send(downstream, "POST", exchange+"/orders", body)
	var operation *net.OpError
	if errors.As(err, &operation) && operation.Op == "dial" {
		return nil, errNobody // There was nobody to talk to. After any other failure the order may be on its way.
	}
	if err != nil || status >= 500 {
		return nil, errUnclear
	}
	if status >= 400 {
		return nil, errRefused
	}
	var said struct {
		Success *bool `json:"success"`
	}
	if json.Unmarshal(text, &said) != nil || said.Success == nil || status != 200 {
		return nil, errUnclear
	}
	if !*said.Success {
		return nil, errRefused
	}
	return text, nil
}

// effect places the order, unless an earlier attempt has.
func effect(granted answer, order members) ([]byte, error) {
	if granted.Takeover {
		if found, err := find(granted.OperationID); err != nil || found != nil {
			return found, err
		}
	}
	return place(order, granted.OperationID)
}

// settle ends an attempt that came to nothing, or of which nobody knows.
func settle(call, key string, granted answer, why error) error {
	told, err := ask(call, members{"key": key, "token": granted.Token, "reason": why.Error()})
	if err == nil && told.Status != 200 {
		err = fmt.Errorf("%w, not recorded: %s", why, told.Code)
	}
	return err
}

func run(key string, order members) error {
	granted, err := reserve(key, order)
	if err != nil {
		return err
	}
	if granted.Result == "completed" {
		if outcome := granted.Outcome; outcome != nil {
			fmt.Println(outcome.Body + string(outcome.BodyB64))
		}
		return nil
	}
	said, err := effect(granted, order)
	switch {
	case errors.Is(err, errRefused), errors.Is(err, errNobody):
		if failed := settle("release", key, granted, err); failed != nil {
			return failed
		}
		return ended{30, err.Error()}
	case err != nil:
		if failed := settle("doubt", key, granted, err); failed != nil {
			return failed
		}
		return ended{11, "in doubt: " + granted.OperationID}
	}
	outcome := members{"status": 200, "body_b64": said} // Bytes are base64 in JSON.
	committed, err := ask("commit", members{"key": key, "token": granted.Token, "outcome": outcome})
	if err == nil && committed.Result != "committed" {
		err = fmt.Errorf("placed, not recorded: %s", committed.Code)
	}
	if err == nil {
		fmt.Println(string(said))
	}
	return err
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: order KEY SYMBOL QUANTITY")
		os.Exit(2)
	}
	err := run(os.Args[1], members{"symbol": os.Args[2], "quantity": os.Args[3]})
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, err)
	var how ended
	if errors.As(err, &how) {
		os.Exit(how.exit)
	}
	os.Exit(1)
}
