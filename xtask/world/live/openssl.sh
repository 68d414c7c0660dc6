# Long hashes, ciphers with keys from passwords, primes, signatures; `$1` is openssl, `$2` a big file.
cp "$2" lines
for d in md5 sha512 sha3-256 blake2b512; do "$1" dgst -$d lines; done
"$1" enc -camellia-256-cbc -pbkdf2 -iter 1000000 -pass pass:x -S 0123456789abcdef -in lines -out x; cksum < x
"$1" enc -d -camellia-256-cbc -pbkdf2 -iter 1000000 -pass pass:x -S 0123456789abcdef -in x -out y; cmp y lines
"$1" prime -checks 2000 170141183460469231731687303715884105727
"$1" genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:3072 -out key 2> /dev/null; "$1" pkey -in key -pubout -out public
"$1" dgst -sha256 -sign key -out signature lines; "$1" dgst -sha256 -verify public -signature signature lines
"$1" base64 -in lines -out z; cksum < z; "$1" x509 -in missing 2>&1 | head -1
