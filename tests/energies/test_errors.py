

Learn more about nbmake at https://github.com/treebeardtech/nbmake

no tests ran in 0.62s
