# Makes a repository `one` of many commits, with a branch, by `git fast-import`; `$1` is git.
"$1" init -q --bare -b main one
awk 'BEGIN {
  for (n = 1; n <= 5000; n++) {
    text = ""
    for (i = 0; i < 150; i++) text = text (i * n * 7919 % 10007) " line " i "\n"
    branch = n % 10 == 0 ? "side" : "main"
    printf "commit refs/heads/%s\ncommitter a <a@example.org> %d +0000\ndata %d\ncommit %d\n", branch, 1580608922 + n, length("commit " n) + 1, n
    if (n == 10) print "from refs/heads/main"
    printf "M 100644 inline dir%d/file%d\ndata %d\n%s\n", n % 7, n % 40, length(text), text
  }
}' | "$1" -C one fast-import --quiet
