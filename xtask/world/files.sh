# Files that archivers and text tools work on, the same each time; in a folder `files`.
mkdir -p files/sub
awk 'BEGIN { for (i = 0; i < 20000; i++) print i * 7919 % 10007, "line", i, substr("abcdefghijklmnopqrstuvwxyz", i % 20, 6) }' > files/lines
head -c 300000 files/lines | tr 'a-z' 'b-za' > files/sub/turned
seq 1 30000 > files/sub/numbers
ln -sf numbers files/sub/link
find files -exec touch -h -d 2020-02-02T02:02:02Z {} +
