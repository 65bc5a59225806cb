mkdir logs
write() {
    awk -v from="$1" -v to="$2" 'BEGIN {
        for (i = from; i < to; i++) {
            print 1000 + i * 10, "start", sprintf("req-%03d", i)
            if (i % 11 == 3) continue                      # these never end
            took = 3 + (i * 29) % 17
            if (i == 20) took = 395                        # ends in a later file
            if (i == 20) { late = 1000 + i * 10 + took; continue }
            print 1000 + i * 10 + took, "end", sprintf("req-%03d", i)
        }
    }'
}
write 0 40 | gzip -n > logs/server.log.2.gz
{ write 40 80; echo "1595 end req-020"; } | gzip -n > logs/server.log.1.gz
write 80 120 > logs/server.log
