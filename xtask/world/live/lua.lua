-- Coroutines, errors, patterns, collector; the argument says how much.
local sum = 0
for n = 1, arg[1] do
  local co = coroutine.wrap(function(x) local y = coroutine.yield(x + 1); return y end)
  sum = sum + co(n) % 7 + co(n) % 5
  local ok = pcall(error, n)
  if not ok then sum = sum + 1 end
  if n % 100 == 0 then sum = sum + #string.gsub("abc" .. n, "%d+", "xy") end
end
print(sum) os.exit(9)
