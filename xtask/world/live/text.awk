# Sums, arrays, functions, patterns and children over many lines.
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) }
{ sum += $1; count[$4]++; greatest[$1 % 5000] = $3 }
/77 line/ { gsub(/[0-9]+/, "<&>"); length_of_all += length($0) + fib(14) }
NR % 20000 == 0 { command = "echo " NR; command | getline said; close(command); sum_said += said; sum_said += system("exit 7") }
END {
  for (n in greatest) total += greatest[n]
  print sum, length(count), total, length_of_all, sum_said
  print "to stderr" > "/dev/stderr"
  exit 4
}
