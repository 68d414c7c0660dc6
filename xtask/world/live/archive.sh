# Packs the file `$1`, unpacks it, and unpacks what was cut off; the rest is the compressor.
lines=$1; shift
"$@" -q -c "$lines" > x; cksum < x
"$1" -q -d -c x > y; cmp y "$lines"
head -c 100000 x > cut; "$1" -q -d -c cut > z; echo "status $?"; cksum < z
