#!/bin/sh
# Places an order at most once, with nothing but curl: reserve, call the exchange, commit.
#
#   order.sh KEY SYMBOL QUANTITY
#
# IDEMACTOR_URL and EXCHANGE_URL say where both are, IDEMACTOR_TOKEN who asks. Exit codes: 0 done, now or before, and
# the answer that says so is printed; 10 somebody else is at it; 11 in doubt; 12 the key stands for another order;
# 30 nothing happened: the exchange refused it, or cannot be reached; 1 anything else.
set -u
[ $# -eq 3 ] || { echo "usage: $0 KEY SYMBOL QUANTITY" >&2; exit 2; }
key=$1 symbol=$2 quantity=$3
case $symbol$quantity in *[!A-Za-z0-9.]*) echo "a symbol and a quantity, please" >&2; exit 2 ;; esac

url=${IDEMACTOR_URL:-http://127.0.0.1:8787}/v1/${IDEMACTOR_NAMESPACE:-trade}
exchange=${EXCHANGE_URL:-http://127.0.0.1:9100}
# The name of this one acquisition: whatever is lost on the way, asking again gets the first answer.
request_id=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# The order's fields, without the braces: they go into the reserve and to the exchange.
order="\"symbol\":\"$symbol\",\"quantity\":\"$quantity\""

# The key as JSON has it. It goes into the body, where it may be any text; bare in a header it is visible ASCII alone.
escaped=$(printf %s "$key" | LC_ALL=C sed 's/[\\"]/\\&/g')

# ask CALL MEMBERS: the status in $status, the answer in $work/answer. Every one of these may be repeated, and is.
ask() {
    for pause in 0 0.2 0.5 1 2 4 8; do
        sleep "$pause"
        status=$(printf '{"key":"%s",%s}' "$escaped" "$2" | curl -sS --max-time 5 -o "$work/answer" \
            -w '%{http_code}' --data-binary @- -H 'Content-Type: application/json' \
            -H "Authorization: Bearer ${IDEMACTOR_TOKEN:-}" "$url/$1") || status=000
        case $status in 000 | 503) ;; *) return 0 ;; esac
    done
    echo "no answer to $1" >&2
    return 1
}

# member NAME: a number or a word out of the answer.
member() { sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" "$work/answer"; }

# settle CALL MORE: end the attempt that $token is.
settle() { ask "$1" "\"token\":$token$2" && [ "$status" = 200 ]; }

# detail: the sentence in which a refusal says why.
detail() { sed -nE 's/.*"detail":"(([^"\\]|\\.)*)".*/\1/p' "$work/answer"; }

tries=0
while ask reserve "\"request_id\":\"$request_id\",\"lease_ms\":30000,\"payload\":{$order}" || exit 1; do
    case $status in
    201) break ;;
    200) cat "$work/answer"; echo; exit 0 ;;
    esac
    code=$(member code)
    case $code in
    IDEMPOTENCY_IN_FLIGHT)
        tries=$((tries + 1))
        [ "$tries" -lt "${TRIES:-5}" ] || { echo "in flight" >&2; exit 10; }
        sleep 1
        ;;
    IDEMPOTENCY_IN_DOUBT) echo "in doubt: $(member operation_id)" >&2; exit 11 ;;
    IDEMPOTENCY_MISMATCH) echo "the key stands for another order" >&2; exit 12 ;;
    *) echo "$status $code: $(detail)" >&2; exit 1 ;;
    esac
done
token=$(member token) operation_id=$(member operation_id) takeover=$(member takeover)

# What the exchange says goes into $work/filled; what became of the order into $placed: yes, no or unknown.
placed= why="the exchange refused it"
if [ "$takeover" = true ]; then
    # An earlier attempt may have placed it: the exchange knows it by the operation id, the same for every attempt.
    found=$(curl -sS --max-time 5 -o "$work/filled" -w '%{http_code}' "$exchange/orders/$operation_id") || found=000
    case $found in 200) placed=yes ;; 404) ;; *) placed=unknown ;; esac
fi
if [ -z "$placed" ]; then
    said=$(curl -sS --max-time "${EXCHANGE_TIMEOUT_S:-5}" -o "$work/filled" -w '%{http_code}' \
        -H 'Content-Type: application/json' -d "{$order,\"client_order_id\":\"$operation_id\"}" "$exchange/orders")
    failure=$?
    # 6 and 7: there was nobody to talk to. After any other failure the order may be on its way.
    case $failure in 0) ;; 6 | 7) said=nobody ;; *) said=000 ;; esac
    case $said in
    nobody) placed=no why="the exchange cannot be reached" ;;
    4??) placed=no ;;
    200)
        # No space and no line end may hide what it says.
        case $(tr -d ' \n' <"$work/filled") in
        *'"success":true'*) placed=yes ;;
        *'"success":false'*) placed=no ;;
        *) placed=unknown ;;
        esac
        ;;
    *) placed=unknown ;;
    esac
fi

case $placed in
yes)
    body=$(base64 <"$work/filled" | tr -d '\n')
    settle commit ",\"outcome\":{\"status\":200,\"body_b64\":\"$body\"}" || { echo "placed, not recorded: $status" >&2; exit 1; }
    cat "$work/filled"; echo
    exit 0
    ;;
no)
    settle release ",\"reason\":\"$why\"" || { echo "$why, not recorded: $status" >&2; exit 1; }
    echo "$why" >&2
    exit 30
    ;;
unknown)
    settle doubt ',"reason":"the exchange did not say"' || { echo "in doubt, not recorded: $status" >&2; exit 1; }
    echo "in doubt: $operation_id" >&2
    exit 11
    ;;
esac
