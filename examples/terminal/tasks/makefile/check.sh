scratch=$(mktemp -d) || exit 2
cp -r . "$scratch/copy" && cd "$scratch/copy" || exit 2
# Times are set by hand: two changes may have the same one, where they follow each other fast.
old() { touch -d "2024-01-01 12:00" parts parts/*.txt render Makefile && touch -d "2024-01-02 12:00" report.txt; }
build() { make > "$scratch/said" 2>&1 || { cat "$scratch/said"; exit 1; }; }

old
rm -f report.txt
build
make -q || { echo "it builds again without need"; exit 1; }
old
echo "third part" > parts/15-third.txt
build
[ "$(cat report.txt)" = "FIRST PART
THIRD PART
SECOND PART" ] || { echo "a new part:"; cat report.txt; exit 1; }
old
make -q || { echo "it builds again without need"; exit 1; }
echo "changed part" > parts/20-second.txt
build
grep -q "CHANGED PART" report.txt || { echo "a changed part:"; cat report.txt; exit 1; }
old
echo "broken part" > parts/10-first.txt
make > "$scratch/said" 2>&1 && { echo "a part that fails goes unnoticed"; exit 1; }
[ ! -e report.txt ] || { echo "a broken report is left"; exit 1; }
