scratch=$(mktemp -d) || exit 2
cat > "$scratch/expected" <<'END'
store/2/shelf 1/item 121.bin
store/2/shelf 3/item 58.bin
store/3/shelf 2/item 17.bin
store/5/shelf 2/item 222.bin
END
diff "$scratch/expected" answer.txt || exit 1
