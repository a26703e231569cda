from pprs.cli import main

main()
