command -v make > /dev/null || { echo "this task needs make" >&2; exit 1; }
mkdir parts
echo "first part" > parts/10-first.txt
echo "second part" > parts/20-second.txt
cat > render <<'END'
#!/bin/sh
# render PART: writes the part in capitals; fails for one that says "broken".
! grep -q broken "$1" && tr a-z A-Z < "$1"
END
chmod +x render
printf 'report.txt: parts/10-first.txt\n\t@for part in parts/10-first.txt parts/20-second.txt; do ./render $$part; done > $@\n' > Makefile
touch -d "2024-01-01 12:00" parts/*.txt render Makefile
