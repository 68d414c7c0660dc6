# What text tools do all day; `$1` names the tool.
. "$WORK/files.sh"; f=files/lines
case $1 in
sort) sort $f | cksum; sort -n -k1,1 -k3,3r $f | cksum; sort -u -k4 $f; sort --parallel=4 -S 200k -R --random-source=$f $f | sort | cksum; sort -c $f ;;
sed) sed -n '5,9p;/ 777 /p' $f; sed -E 's/([0-9]+) line ([0-9]+)/\2:\1/g;1~3d;y/abc/xyz/' $f | cksum; sed 'N;N;s/\n/+/g;G' files/sub/numbers | cksum; sed 's/[/x/' $f ;;
grep) grep -c 'line 7' $f; grep -E '^([0-9])\1+ ' $f | cksum; grep -owFe 123 -e abcdef $f | sort | uniq -c; grep -P '(?<=line )(\d)\1\1\b' $f | head -3; grep -r 777 files | cksum; grep missing $f ;;
find) find files -type f -name '*e*' -size +1k -printf '%p %s\n' | sort; find files -newermt 2020-01-01 -exec cksum {} + | sort; find missing ;;
*) "$1" '{ s += $1; c[$4]++; n = n < $3 ? $3 : n } /77$/ { m++ } END { print s, length(c), n, m; printf "%.6f %s\n", sin(1) + exp(1), toupper(substr("hello", 2, 3)) }' $f
   "$1" 'function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) } BEGIN { print fib(18); while (("seq 1 100" | getline x) > 0) t += x; print t; split("a:b:c", p, ":"); gsub(/b/, "x&x", p[2]); print p[2] | "cat"; close("cat"); print "to stderr" > "/dev/stderr"; exit 4 }' ;;
esac
