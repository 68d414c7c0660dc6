set nomore
call setline(1, map(range(1, 500), 'v:val * 7919 % 503 . " line"'))
sort n
%s/\(\d\+\) line/line \1/
g/9$/d
normal ggyyGp
let x = 0
for i in range(1000) | let x += i % 7 | endfor
call append(0, printf('%d %s', x, join(reverse(split('a b c')), '-')))
try | throw 'oops' | catch /oops/ | call append(1, v:exception) | endtry
call append(2, system('echo from a child'))
w! out
q!
