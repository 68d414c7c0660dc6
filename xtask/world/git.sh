# A repository with branches, a merge, a conflict, a rebase, packing and a clone.
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_AUTHOR_DATE='2020-02-02T02:02:02Z' GIT_CONFIG_NOSYSTEM=1
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org GIT_COMMITTER_DATE='2020-02-02T02:02:02Z'
git init -q -b main one && cd one
for n in 1 2 3 4 5; do seq $n 200 > file$n; git add .; git commit -qm "commit $n"; done
git checkout -qb side HEAD~2; echo side > file1; git commit -qam side; git checkout -q main; echo main > file1; git commit -qam main
git merge side; git checkout --ours file1; git add .; git commit -qm merged
git log --oneline --graph --stat | cat; git diff HEAD~1 --shortstat; git blame -s file2 | sha1sum
git checkout -qb again side; git rebase -q main; git gc -q; git fsck --full --strict 2>&1; cd ..
git clone -q one two; git -C two log --format=%H | sha1sum; git -C two grep -c 19; git -C two archive HEAD | sha1sum
git -C two checkout nothing
