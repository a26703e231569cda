from pprs.cli import main

if __name__ == "__main__":  # a worker's process imports this too
    main()
