from albertkit.cli import main

main()
