# What bash has more than dash: arrays, patterns, a coprocess, process substitution, recursion; a trap meanwhile.
trap 'signals=$((signals + 1))' USR1
fib() { (( $1 < 2 )) && { r=$1; return; }; local a; fib $(($1 - 1)); a=$r; fib $(($1 - 2)); r=$((r + a)); }
coproc up { while read -r l; do echo "${l^^}"; done; }
declare -A map; list=(); sum=0 text=
for ((i = 0; i < 350; i++)); do
  fib 10; sum=$((sum + r))
  for n in {1..300}; do map[k$((n * i % 997))]=$((n * n)); list[n]="key$n = value$i"; done
  for l in "${list[@]:100:100}"; do [[ $l =~ ^([a-z]+)([0-9]+)\ =\ (.*)$ ]] && sum=$((sum + BASH_REMATCH[2] + ${#BASH_REMATCH[3]})); done
  echo "hello $i" >&"${up[1]}"; read -r l <&"${up[0]}"; text+=${l/L/l}
  mapfile -t lines < <(seq 1 "$i"); sum=$((sum + ${#lines[@]}))
  kill -USR1 $$
done
echo "$sum ${#map[@]} ${#text} $signals"
exit 6
