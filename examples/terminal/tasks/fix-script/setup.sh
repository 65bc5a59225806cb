mkdir -p "notes/old ones"
echo one > notes/one.txt
echo two > "notes/number two.txt"
echo three > "notes/old ones/three.txt"
echo four > notes/four.md
cat > pack.sh <<'END'
#!/bin/sh
# pack.sh FOLDER TARGET: copies the text files below FOLDER into TARGET and prints how many.
count=0
mkdir -p $2
find $1 -name "*.txt" | while read file; do
    cp $file $2
    count=$((count + 1))
done
echo $count
END
