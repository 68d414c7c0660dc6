# Errors, patterns, recursion, children.
proc fib n { expr {$n < 2 ? $n : [fib [expr {$n - 1}]] + [fib [expr {$n - 2}]]} }
set sum 0
for {set n 0} {$n < 500} {incr n} {
  incr sum [fib 15]
  catch {error $n} text; incr sum [string length $text]
  for {set k 0} {$k < 4000} {incr k} { incr sum [string length [regsub {[0-9]+} "a$k" x]] }
  if {$n % 50 == 0} { exec true }
}
puts $sum; exit 7
