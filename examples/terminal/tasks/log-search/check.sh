[ "$(cat answer.txt)" = req-020 ] || { echo "got: $(cat answer.txt)"; exit 1; }
