set pagination off
set confirm off
set debuginfod enabled off
set disable-randomization on
# Else the program is traced, too, and its backtrace shows that.
unset environment LD_PRELOAD
break deep if n == 97
run
backtrace 5
info args
finish
