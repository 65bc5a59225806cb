scratch=$(mktemp -d) || exit 2
cat > "$scratch/expected" <<'END'
east,0.00
north,1100.20
south,337.50
west,199.99
END
diff "$scratch/expected" totals.csv || exit 1
