# Packs and unpacks; `$1` names the compressor.
. "$WORK/files.sh"
case $1 in
tar) tar --sort=name --owner=0 --group=0 --numeric-owner -cf x.tar files; cksum x.tar; mkdir out; tar -xf x.tar -C out; diff -r files out/files && tar -tvf x.tar --utc; tar -xf missing.tar ;;
*) for level in 1 6; do "$1" -q -$level -c files/lines > x; "$1" -q -d -c x | cmp - files/lines && cksum < x; done; head -c 1000 x | "$1" -q -d -c | cksum ;;
esac
