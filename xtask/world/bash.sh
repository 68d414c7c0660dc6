# What bash has more than dash: arrays, regular expressions, process substitution, coprocesses, namerefs.
declare -A map; for n in {1..500}; do map[k$n]=$((n * n)); done; echo "${#map[@]} ${map[k77]}"
list=(); for n in {1..300}; do list+=("$n"); done; echo "${list[@]:5:4} ${#list[@]}"
[[ "key = value" =~ ^([a-z]+)\ =\ (.*)$ ]] && echo "${BASH_REMATCH[2]}"
diff <(seq 1 5) <(seq 2 6); mapfile -t lines < <(seq 1 100); echo "${#lines[@]}"
coproc up { while read -r l; do echo "${l^^}"; done; }; echo hello >&"${up[1]}"; read -r l <&"${up[0]}"; echo "$l"
fib() { (( $1 < 2 )) && { r=$1; return; }; local a; fib $(($1 - 1)); a=$r; fib $(($1 - 2)); r=$((r + a)); }; fib 13; echo "$r"
printf -v s '%08.3f' 3.14159; echo "$s ${s/0/x}"; set -o pipefail; false | true; echo $?
