scratch=$(mktemp -d) || exit 2
[ "$(wc -l < pattern.txt)" -le 1 ] || { echo "more than one line"; exit 1; }
printf '%s\n' 127.0.0.1 10.0.0.255 192.168.1.10 0.0.0.0 255.255.255.255 249.250.99.100 1.1.1.1 199.200.19.20 > "$scratch/good"
printf '%s\n' 256.1.1.1 1.2.3 1.2.3.4.5 01.2.3.4 "1.2.3.4 " 260.1.1.1 1.300.1.1 1.1.1.256 1.1.1.1000 1a1b1c1 1.2.3.04 \
    .1.2.3 1.2.3. x1.2.3.4 1.2.3.4x "" -1.2.3.4 > "$scratch/bad"
grep -Ev -f pattern.txt "$scratch/good" && { echo "these should match"; exit 1; }
grep -E -f pattern.txt "$scratch/bad" && { echo "these should not match"; exit 1; }
exit 0
