# For bash and dash: functions, subshells, pipes, background jobs, traps, here documents, arithmetic.
count() { n=0; while [ $n -lt "$1" ]; do n=$((n + 1)); done; echo $n; }
count 5000
i=0
while [ $i -lt 30 ]; do (exit $i); s=$?; [ $s -eq $i ] || echo "wrong status $s"; i=$((i + 1)); done
for w in c a b; do echo $w; done | sort | tr a-z A-Z
sleep 100 & p=$!; kill -TERM $p; wait $p; echo "killed: $?"
trap 'echo usr1' USR1; kill -USR1 $$
for n in 1 2 3 4 5; do (echo "job $n" > job.$n) & done; wait; cat job.*
cat <<END | while read -r a b; do echo "$b $a"; done
one two
three four
END
x=$(printf '%s,' a b c); echo "${x%,} ${#x}"
seq 1 2000 > numbers; sum=0; while read -r n; do sum=$((sum + n)); done < numbers; echo $sum
ls nothing-here 2>/dev/null || echo "none: $?"
set -- one two three; shift; echo "$# $*"
echo "to stderr" >&2
trap 'echo bye' EXIT
exit 6
