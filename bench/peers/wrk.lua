-- What wrk sends: "new" reserves new keys, "cycle" reserves and then commits each, "hot" asks for one committed key.
-- Arguments: the mode, calls in a pipeline, the path of reserve, the path of commit.

local mode, in_flight, reserve_path, commit_path
local prefix, count, waiting = "", 0, {}
local headers = { ["Content-Type"] = "application/json" }

function init(args)
  mode, in_flight, reserve_path, commit_path = args[1], tonumber(args[2]), args[3], args[4]
  local random = io.open("/dev/urandom", "rb")
  prefix = random:read(8):gsub(".", function(byte) return string.format("%02x", string.byte(byte)) end)
  random:close()
  if mode ~= "cycle" then
    -- Reading every answer costs more than sending it; its status tells as much.
    response = nil
  end
end

local function one()
  local due = table.remove(waiting)
  if due then
    return wrk.format("POST", commit_path, headers, due)
  end
  count = count + 1
  local key = mode == "hot" and "hot" or prefix .. "-" .. count
  return wrk.format("POST", reserve_path, headers, '{"key":"' .. key .. '"}')
end

function request()
  if in_flight == 1 then
    return one()
  end
  local calls = {}
  for i = 1, in_flight do
    calls[i] = one()
  end
  return table.concat(calls)
end

function response(status, _, body)
  if status == 201 then
    local key, token = body:match('"key":"([^"]*)"'), body:match('"token":(%d+)')
    waiting[#waiting + 1] = '{"key":"' .. key .. '","token":' .. token .. "}"
  end
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\nFIGURES {"answers": %d, "seconds": %f, "errors": %d, "refused": %d, "p50_us": %f, "p99_us": %f, "p999_us": %f}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.timeout, errors.status,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
