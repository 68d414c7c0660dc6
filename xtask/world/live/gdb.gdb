set pagination off
set confirm off
set debuginfod enabled off
set disable-randomization on
# Else the program is traced, too, and its backtrace shows that.
unset environment LD_PRELOAD
break insert if key % 5 == 1
commands
silent
set $sum = $sum + key
end
ignore 1 4000
set $sum = 0
run
backtrace 5
print $sum
delete 1
tbreak deep if n == 97
continue
backtrace 5
stepi 2000
backtrace 1
