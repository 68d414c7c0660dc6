\ Recursion, exceptions, memory, strings, children.
: fib dup 2 < if exit then dup 1- recurse swap 2 - recurse + ;
: deep dup 0= if 77 throw then 1- recurse ;
: caught 0 20000 0 do 50 ['] deep catch nip + loop ;
: text 0 50000 0 do i s>d <# #s #> nip + loop ;
: memory 0 2000 0 do i 100 + allocate throw dup i 100 + i fill dup 50 + c@ rot + swap free throw loop ;
: work 0 120 0 do 24 fib + caught + text + memory + s" exit 7" system $? + loop . cr ;
work bye
