set nomore
call setline(1, map(range(1, 20000), 'v:val * 7919 % 20011 . " line"'))
let sum = 0
for round in range(20)
  sort! n
  sort n
  %s/\(\d\+\) line/\=submatch(1) * 3 % 20011 . ' line'/
  g/99 /normal ddGp
  for i in range(20000) | let sum += len(matchstr(getline(i), '\d\+')) | endfor
  for i in range(2000)
    try | throw 'oops' . i | catch /oops.*7$/ | let sum += 1 | catch | endtry
  endfor
  let sum += system('echo 7')
endfor
call append(0, sum)
w! out
cquit 3
