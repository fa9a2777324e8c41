NAME = "trainer"
