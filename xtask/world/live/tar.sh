# Packs the folder `tree` of `$1`, compares, lists and unpacks it, some of it into children.
tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner -cf x.tar tree; cksum < x.tar
tar -C "$1" -df x.tar; tar --utc -tvf x.tar > list; cksum < list
tar -xf x.tar; diff -r tree "$1/tree"
tar -xf x.tar --to-command=cksum --wildcards 'tree/0*'
tar -xf missing.tar
