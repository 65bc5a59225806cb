[ "$(cat answer.txt)" = "tok_9f4kz17qav Retry more often" ] || { echo "got: $(cat answer.txt)"; exit 1; }
