scratch=$(mktemp -d) || exit 2
cp -r . "$scratch/copy" && cd "$scratch/copy" || exit 2
old() { touch -d "2024-01-01 12:00" "$@"; }
build() { make > "$scratch/said" 2>&1 || { cat "$scratch/said"; exit 1; }; }

rm -f report.txt
old parts/*.txt render Makefile
build
make -q || { echo "it builds again without need"; exit 1; }
echo "third part" > parts/15-third.txt
build
[ "$(cat report.txt)" = "FIRST PART
THIRD PART
SECOND PART" ] || { echo "a new part:"; cat report.txt; exit 1; }
old report.txt parts/*.txt
echo "changed part" > parts/20-second.txt
build
grep -q "CHANGED PART" report.txt || { echo "a changed part:"; cat report.txt; exit 1; }
old report.txt
echo "broken part" > parts/10-first.txt
make > "$scratch/said" 2>&1 && { echo "a part that fails goes unnoticed"; exit 1; }
[ ! -e report.txt ] || { echo "a broken report is left"; exit 1; }
