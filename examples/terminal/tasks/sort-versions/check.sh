scratch=$(mktemp -d) || exit 2
cat > "$scratch/expected" <<'END'
0.9.12 2021-05-05
1.2.3 2022-03-14
1.2.11 2022-07-30
1.9.0 2023-11-20
1.10.0 2024-01-15
2.0.0 2024-09-08
10.0.0 2025-06-01
END
diff "$scratch/expected" sorted.txt || exit 1
