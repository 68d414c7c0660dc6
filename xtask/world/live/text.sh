# What text tools do with a big file or tree; `$1` names the tool, `$2` the file or tree.
case $1 in
sort)
  sort --parallel=4 -S 4M -T . --compress-program=gzip -k4,4 -k1,1nr "$2" -o x; cksum < x
  sort --parallel=4 -u -n -k1.1,1.4 x -o y; cksum < y
  sort -c "$2" ;;
grep)
  grep -cE '^([0-9])[0-9]*\1 line ([0-9])[0-9]*\2 ' "$2"
  grep -P '(?<=line )(\d)\1\1(\d)\2+\b' "$2"
  seq 7 777 99999 > words; grep -cwFf words "$2"
  exec grep -i 'missing$' "$2" ;;
find)
  exec find "$2" missing -regextype posix-extended -regex '.*/([0-9])[0-9]\1[0-9]' -exec cksum {} \; -o -size 4 -name '*7' -printf '%f %s %TY\n' ;;
esac
