[ "$(cat answer.txt)" = 26 ] || { echo "got: $(cat answer.txt)"; exit 1; }
