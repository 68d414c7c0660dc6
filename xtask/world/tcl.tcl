# Errors through frames, dictionaries, coroutines, regular expressions, the event loop with sockets, a child, deep recursion.
proc deep n { if {$n == 0} { error bottom } ; return [expr {1 + [deep [expr {$n - 1}]]}] }
set caught 0; for {set i 0} {$i < 50} {incr i} { if {[catch {deep 100} message]} { incr caught } }; puts "$caught $message"
proc fib n { if {$n < 2} { return $n }; expr {[fib [expr {$n - 1}]] + [fib [expr {$n - 2}]]} }; puts [fib 16]
proc sum n { if {$n == 0} { return 0 }; expr {$n + [sum [expr {$n - 1}]]} }; puts [sum 400]
set d [dict create]; foreach w [split [string repeat "the quick brown fox " 50]] { if {$w ne ""} { dict incr d $w } }; puts [lsort -stride 2 $d]
proc gen {} { yield; for {set i 0} {$i < 100} {incr i} { yield $i } ; return done }; coroutine g gen; set t 0; while {[set v [g]] ne "done"} { incr t $v }; puts $t
puts [regsub -all {(\w)(\w*)} "the quick brown fox" {\2\1}]; puts [exec sh -c "echo from a child"]; puts [catch {exec sh -c "exit 7"} m o]
proc accept {s args} { fconfigure $s -buffering line; fileevent $s readable [list serve $s] }; proc serve s { if {[gets $s l] < 0} { close $s } else { puts $s [string toupper $l] } }
set l [socket -server accept -myaddr 127.0.0.1 0]; set port [lindex [fconfigure $l -sockname] 2]
for {set i 0} {$i < 5} {incr i} { set c [socket 127.0.0.1 $port]; fconfigure $c -buffering line -blocking 0; puts $c "hello $i"; fileevent $c readable {gets $c answer}; vwait answer; puts $answer; close $c }
set f [open x w]; for {set i 1} {$i <= 2000} {incr i} { puts $f $i }; close $f; set f [open x]; set n 0; while {[gets $f l] >= 0} { incr n $l }; close $f; puts $n
puts stderr "to stderr"; exit 4
