scratch=$(mktemp -d) || exit 2
cat > "$scratch/expected" <<'END'
640 outside
755 site
755 site/bin
755 site/bin/data
644 site/bin/data/count
755 site/bin/start
755 site/bin/stop.sh
755 site/pages
755 site/pages/en
644 site/pages/en/first page.html
644 site/pages/index.html
700 site/private
700 site/private/keys
600 site/private/keys/id
600 site/private/password
END
find outside site -exec stat -c "%a %n" {} + | LC_ALL=C sort -k2 | diff "$scratch/expected" - || exit 1
[ "$(cat site/private/password site/bin/data/count)" = "secret
1" ] || { echo "contents were changed"; exit 1; }
