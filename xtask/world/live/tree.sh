# Many small files, the same each time, in a folder `tree`.
mkdir tree
seq 1 6000000 | split -a 4 -d -l 300 - tree/
find tree -exec touch -d 2020-02-02T02:02:02Z {} +
