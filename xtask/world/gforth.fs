\ Recursion, exceptions, memory, strings.
: fib dup 2 < if exit then dup 1- recurse swap 2 - recurse + ;
22 fib . cr
: deep dup 0= if 77 throw then 1- recurse ;
: caught 0 100 0 do 50 ['] deep catch nip + loop ; caught . cr
: sieve ( n -- count ) dup here swap 1 fill 0 swap 2 do here i + c@ if 1+ then loop ; 
variable sum : total 0 sum ! 10000 0 do i i * 7 mod sum +! loop sum @ . cr ; total
: words-of s" the quick brown fox" type cr ; words-of
1000 allocate throw dup 1000 char x fill dup 10 type cr free throw
s" echo from a child" system
bye
