-- Coroutines, closures, pcall through frames, tables, patterns, garbage collection, files, a child; for Lua 5.1 (LuaJIT) to 5.4.
local count = {}
for w in ("the quick brown fox jumps over the lazy dog "):rep(200):gmatch("%a+") do count[w] = (count[w] or 0) + 1 end
local words = {} for w in pairs(count) do words[#words + 1] = w end table.sort(words)
for i, w in ipairs(words) do words[i] = w .. "=" .. count[w] end print(table.concat(words, " "))
local function gen(n) return coroutine.wrap(function() for i = 1, n do coroutine.yield(i) end end) end
local sum = 0 for i in gen(5000) do sum = sum + i end print(sum)
local function deep(n) if n == 0 then error({ depth = 150 }) end return deep(n - 1) + 1 end
local caught = 0 for _ = 1, 200 do local ok, e = pcall(deep, 100) if not ok and e.depth == 150 then caught = caught + 1 end end print(caught)
print(pcall(function() local function f(n) return 1 + f(n + 1) end return f(0) end) == false)
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end print(fib(22))
local meta = { __index = function(t, k) return k * 2 end, __add = function(a, b) return 7 end } local t = setmetatable({}, meta) print(t[21], t + t)
for i = 1, 20000 do local x = { i, tostring(i) } end collectgarbage() print(collectgarbage("count") > 0)
local f = assert(io.open("x", "w")) for i = 1, 3000 do f:write(i, "\n") end f:close()
local total = 0 for line in io.lines("x") do total = total + tonumber(line) end print(total)
local p = assert(io.popen("echo from a child")) print(p:read("*l")) p:close()
print(("hello world"):gsub("o", "0"), string.format("%5.2f %x %q", 3.14159, 255, "a\nb"))
io.stderr:write("to stderr\n") os.exit(7)
