cat > orders.csv <<'END'
id,customer,region,quantity,price
1,Berger & Sons,north,3,19.90
2,"Costa, Maria",south,1,250.00
3,Dimitrov,north,10,4.05
4,"Eriksen, Ltd.",west,2,99.99
5,Fontaine,south,7,12.50
6,"Grau, Hahn, Iver",west,1,0.01
7,Jensen,north,1,1000.00
8,Kowalski,east,0,75.00
END
