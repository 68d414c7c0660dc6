# Arithmetic, subshells, pipes, here documents; a trap.
trap 'n=$((n+0))' USR1
i=0 sum=0
while [ $i -lt 60000 ]; do
  i=$((i + 1)) sum=$((sum + i % 7))
  case $i in
    *00) sum=$((sum + $(echo $i | tr -d 0 | wc -c))); (exit 3) || sum=$((sum + $?)); kill -USR1 $$ ;;
  esac
done
cat <<END
$sum
END
exit 6
