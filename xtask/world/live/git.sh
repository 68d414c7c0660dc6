# Clones, repacks and checks the repository `$2`; its log with all changes, blame, a merge; `$1` is git.
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_AUTHOR_DATE='2020-02-02T02:02:02Z' GIT_CONFIG_NOSYSTEM=1
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org GIT_COMMITTER_DATE='2020-02-02T02:02:02Z'
"$1" clone -q --no-local "$2" two && cd two
"$1" repack -adfq --depth=20 --window=20 --threads=2
"$1" fsck --full --strict 2>&1
"$1" log --all --stat -p > ../log; cksum < ../log
"$1" merge -q -s ours -m merged origin/side; "$1" rev-parse HEAD
for n in 1 2 3 4 5 6; do "$1" blame -s dir$n/file$n > ../blame; cksum < ../blame; done
"$1" gc -q; "$1" archive HEAD > ../archive; cksum < ../archive
exec "$1" checkout nothing
