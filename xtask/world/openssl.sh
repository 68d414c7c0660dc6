# Hashes, ciphers, keys, signatures, certificates.
. "$WORK/files.sh"; o=$1
for d in md5 sha1 sha256 sha512 sha3-256 blake2b512; do $o dgst -$d files/lines; done
$o enc -aes-256-cbc -pbkdf2 -pass pass:x -S 0123456789abcdef -in files/lines -out x && cksum < x && $o enc -d -aes-256-cbc -pbkdf2 -pass pass:x -S 0123456789abcdef -in x | cmp - files/lines
$o genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:1024 -out key 2>/dev/null && $o dgst -sha256 -sign key -out signature files/lines && $o pkey -in key -pubout -out public && $o dgst -sha256 -verify public -signature signature files/lines
$o ecparam -name prime256v1 -genkey -noout -out ec && $o req -new -x509 -key ec -subj /CN=example.org -days 3 -out certificate && $o verify -CAfile certificate certificate && $o x509 -in certificate -noout -subject
$o prime 1000003; $o base64 -in files/sub/numbers | cksum; $o x509 -in missing 2>&1 | head -1
