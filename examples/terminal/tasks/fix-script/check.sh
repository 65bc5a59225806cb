# On files that the agent has never seen.
scratch=$(mktemp -d) || exit 2
mkdir -p "$scratch/in put/deep/er  still"
cd "$scratch" || exit 2
printf a > "in put/a.txt"
printf b > "in put/deep/b  b.txt"
printf c > "in put/deep/er  still/- c.txt"
printf d > 'in put/back\slash.txt'
printf e > "in put/e.text"
said=$(sh "$OLDPWD/pack.sh" "in put" "out put" 2>&1) || { echo "it fails: $said"; exit 1; }
[ "$said" = 4 ] || { echo "it says: $said"; exit 1; }
[ "$(ls "out put" | wc -l)" -eq 4 ] || { ls "out put"; exit 1; }
for file in "a.txt" "b  b.txt" "- c.txt" 'back\slash.txt'; do
    [ -f "out put/$file" ] || { echo "not copied: $file"; exit 1; }
done
