module hallway.example/rawstream

go 1.19
