i=0
while [ $i -lt 35 ]; do
    mkdir -p "store/$((i % 7))/shelf $((i % 5))"
    i=$((i + 1))
done
i=0
while [ $i -lt 240 ]; do
    case $i in
        17 | 58 | 121 | 222) size=$((102401 + i)) ;;
        90) size=102400 ;; # 100 KiB, and not more
        *) size=$((i * 37 % 900)) ;;
    esac
    head -c $size /dev/zero > "store/$((i % 7))/shelf $((i % 5))/item $i.bin"
    i=$((i + 1))
done
ln -s "shelf 2/item 17.bin" store/3/newest.bin
mkdir store/3/item-large.d
