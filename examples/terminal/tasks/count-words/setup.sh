cat > poem.txt <<'END'
The ledger keeps what the worker tells,
the worker sleeps; the ledger tells
of sleep, of work -- of Work! and then
of sleepers, who will work again.

Again, again: a line, a LINE,
no line of theirs, no line of mine;
and what was told (and told, and told)
the ledger keeps. The page grows old.
END
